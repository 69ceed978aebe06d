# frozen_string_literal: true

# Places orders, and takes their payments.
class Checkout
  def initialize(redis, seconds_to_pay:)
    @redis = redis
    @seconds_to_pay = seconds_to_pay
  end

  def place(id)
    Order.create!(id: id).tap { |order| @redis.set("order:#{id}", "unpaid", ex: @seconds_to_pay) }
  end

  def pay(order)
    order.pay!
    @redis.del("order:#{order.id}")
  end
end
